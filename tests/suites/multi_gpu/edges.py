"""What is easily forgotten: other parameters, wide integers, complex numbers, views, polling, skew, two programs at once."""

from __future__ import annotations


import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from tests.suites.multi_gpu.programs import shift, shifted
from tests.suites.multi_gpu.suite import (
    PARAMS, REGULAR, SMEM, Barrier, P, Program, data, everyone, fetch, handshake, i32, kernel, like, line, me, over, place, right,
    subject, tiled, transpose,
)  # fmt: skip


@subject("none", "jax", "smalt", "lane", "no barriers")
def parameters(n: int, which: str) -> Program:
    """Whatever `compiler_params` are."""
    semantics = plgpu.LoweringSemantics
    params = {
        "none": None,
        "jax": plgpu.CompilerParams(lowering_semantics=semantics.Warpgroup),
        "smalt": smalt.CompilerParams(),
        "lane": smalt.CompilerParams(lowering_semantics=semantics.Lane),
        "no barriers": smalt.CompilerParams(unsafe_no_auto_barriers=True),
    }[which]

    def local(x):
        def body(x, o, sem, bar):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...]
            if which == "no barriers":  # A signal speaks for one thread: the others must be waited for.
                plgpu.barrier_arrive(bar)
                plgpu.barrier_wait(bar)
            handshake(sem, to)

        return kernel(body, like((1, 128)), REGULAR, Barrier(), params=params)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject(x64=True)
def wide_device_ids(n: int) -> Program:
    """With `jax_enable_x64` loop counters are 64 bits wide, and so are device ids made of them."""

    def local(x):
        def body(x, o, sem):
            @pl.loop(0, n)
            def _(peer):
                plgpu.remote_ref(o, peer)[0, me()] = plgpu.remote_ref(x, peer)[0, me()] + x[0, peer]
                pl.semaphore_signal(sem, 1, device_id=i32(peer))

            pl.semaphore_wait(sem, n)

        return kernel(body, like((1, n, 64)), REGULAR)(x)

    x = data((n, n, 64))
    return Program(over(local, line(n)), [x], [x + x.swapaxes(0, 1)])


@subject("int8", "uint8", "int16", "int64")
def device_ids_of_other_types(n: int, dtype: str) -> Program:
    """A table of device ids in other integers."""

    def local(x, table):
        def body(x, table, o, sem):
            to = table[me()]
            plgpu.remote_ref(o, to)[...] = x[...]
            handshake(sem, to.astype(jnp.int32))

        return kernel(body, like((1, 128)), REGULAR)(x, table)

    x = data((n, 128))
    table = ((np.arange(n) + 1) % n).astype(dtype)
    return Program(over(local, line(n), (P("x"), P())), [x, table], [np.roll(x, 1, 0)])


@subject()
def device_id_from_outside(n: int) -> Program:
    """A traced number from around the kernel is the device id."""

    def local(x):
        to = lax.rem(lax.axis_index("x") + i32(1), i32(n))

        def body(x, o, sem):
            plgpu.remote_ref(o, to)[...] = x[...]
            handshake(sem, to)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject("complex64")
def complex_numbers(n: int, dtype: str) -> Program:
    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[0] = x[0] * 2
            plgpu.remote_ref(o.at[1], to)[...] = plgpu.remote_ref(x, to)[1]
            everyone(sem, n)

        return kernel(body, like((2, 64), dtype), REGULAR)(x)

    x = (data((2 * n, 64)) + 1j * data((2 * n, 64), seed="i")).astype(dtype)
    pairs = x.reshape(n, 2, 64)
    out = np.stack([np.roll(pairs[:, 0] * np.complex64(2), 1, 0), pairs[:, 1]], 1)
    return Program(over(local, line(n)), [x], [out.reshape(2 * n, 64)])


@subject()
def views_of_a_peer(n: int) -> Program:
    """Reshaped, transposed, sliced with steps: before and behind `remote_ref`."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            far = plgpu.remote_ref(o, to)
            far.reshape(1, 512)[0, 0:128] = x[0].reshape(512)[0:128]
            plgpu.remote_ref(o.reshape(1, 512), to)[0, 128:256] = x[0].reshape(512)[128:256]
            transpose(plgpu.remote_ref(o.at[0], to), (1, 0))[:, 4:6] = x[0, 4:6].T
            far[0, 6:8] = transpose(x.at[0], (1, 0))[:, 6:8].T
            handshake(sem, to)

        return kernel(body, like((1, 8, 64)), REGULAR)(x)

    x = data((n, 8, 64))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def odd_sizes(n: int) -> Program:
    """Arrays of no round size, at offsets of no alignment."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[0, 3:98] = x[0, 3:98] * 2
            plgpu.remote_ref(o, to)[0, 0:3] = plgpu.remote_ref(x, to)[0, 98:101]
            plgpu.remote_ref(o, to)[0, 98:101] = x[0, 0:3]
            everyone(sem, n)

        return kernel(body, like((1, 101), jnp.bfloat16), REGULAR)(x)

    x = data((n, 101), jnp.bfloat16)
    out = np.roll(x * np.asarray(2, x.dtype), 1, 0)
    out[:, :3] = x[:, 98:]
    out[:, 98:] = np.roll(x, 1, 0)[:, :3]
    return Program(over(local, line(n)), [x], [out])


@subject()
def polling(n: int) -> Program:
    """A loop looks at a semaphore and counts; a wait that is over at once then orders what follows."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...] + 1
            pl.semaphore_signal(sem, 3, device_id=to)
            lax.while_loop(lambda v: v < 3, lambda _: pl.semaphore_read(sem), i32(0) + pl.semaphore_read(sem))
            pl.semaphore_wait(sem, 3)
            o[...] = o[...] * 2

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x + 1, 1, 0) * 2])


@subject()
def skew(n: int) -> Program:
    """Devices that are late by different times, in every round."""

    def local(x):
        def body(x, o, boxes, sems):
            to = right(n)
            o[...] = x[...]
            for r in range(3):

                @pl.loop(i32(0), lax.rem(me() + r, i32(n)) * 5)
                def _(i):
                    o[0, 0] = o[0, 0] * 1

                plgpu.remote_ref(boxes, to)[r] = o[0]
                pl.semaphore_signal(sems.at[r], 1, device_id=to)
                pl.semaphore_wait(sems.at[r], 1)
                o[0] = boxes[r] + 1

        return kernel(body, [like((1, 128)), like((3, 128))], REGULAR((3,)))(x)[0]

    x = data((n, 128))
    now = x
    for _ in range(3):
        now = np.roll(now, 1, 0) + 1
    return Program(over(local, line(n)), [x], [now])


@subject(devices=lambda n: n >= 4 and n % 2 == 0, leaves_out=True)
def two_programs_on_two_halves(n: int) -> Program:
    """Two meshes that share no device, busy at the same time."""
    m = n // 2

    def fn(x):
        halves = [line(m, jax.devices()[:m]), line(m, jax.devices()[m:n])]
        fs = [jax.jit(over(lambda x, f=float(2 + i): shift(m, x, factor=f), mesh)) for i, mesh in enumerate(halves)]
        out = [place(x[i * m : i * m + m], mesh, P("x")) for i, mesh in enumerate(halves)]
        for _ in range(4):
            out = [f(o) for f, o in zip(fs, out)]
        return [fetch(o) for o in out]

    x = data((n, 128))
    expected = []
    for i in range(2):
        now = x[i * m : i * m + m]
        for _ in range(4):
            now = shifted(now, factor=2 + i)
        expected.append(now)
    return Program(fn, [x], expected, jit=False)


@subject()
def tma_pipeline_over_two_peers(n: int) -> Program:
    """`emit_pipeline` with swizzled blocks, from the right and to the left."""

    def local(x):
        def body(x, o, sem):
            def step(_, x, o):
                o[...] = x[...] * 2

            block = plgpu.BlockSpec((16, 32), lambda i, j: (i, j), transforms=tiled(jnp.float32))
            run = plgpu.emit_pipeline(step, grid=(2, 2), in_specs=[block], out_specs=[block], max_concurrent_steps=2)
            run(plgpu.remote_ref(x.at[0], right(n)), plgpu.remote_ref(o.at[0], right(n, n - 1)))
            plgpu.wait_smem_to_gmem(0)
            everyone(sem, n)

        return kernel(body, like((1, 32, 64)), REGULAR)(x)

    x = data((n, 32, 64))
    return Program(over(local, line(n)), [x], [np.roll(x * 2, -2, 0)])


@subject()
def tma_to_every_device(n: int) -> Program:
    """Tensor maps over all peers' buffers, one after the other, by a device id that a loop counts."""

    def local(x):
        def body(x, o, buf, bar, sem):
            plgpu.copy_gmem_to_smem(x.at[0], buf, bar)
            plgpu.barrier_wait(bar)

            @pl.loop(i32(0), i32(n))
            def _(peer):
                plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o, peer).at[0, me()])

            plgpu.wait_smem_to_gmem(0)
            everyone(sem, n)

        scratch = (SMEM((32, 64), jnp.bfloat16, transforms=tiled(jnp.bfloat16)), Barrier(), REGULAR)
        return kernel(body, like((1, n, 32, 64), jnp.bfloat16), *scratch)(x)

    x = data((n, 32, 64), jnp.bfloat16)
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def tma_of_an_output(n: int) -> Program:
    """A tile that a peer stored into an output by TMA is loaded from it by TMA."""

    def local(x):
        def body(x, o, inbox, buf, bar, sem):
            to = right(n)
            plgpu.copy_gmem_to_smem(x.at[0], buf, bar)
            plgpu.barrier_wait(bar)
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(inbox, to))
            plgpu.wait_smem_to_gmem(0)
            handshake(sem, to)
            plgpu.copy_gmem_to_smem(inbox, buf, bar)
            plgpu.barrier_wait(bar)
            o[0] = buf[...] + 1

        scratch = (SMEM((16, 32), jnp.float32, transforms=tiled(jnp.float32)), Barrier(), REGULAR)
        return kernel(body, [like((1, 16, 32)), like((16, 32))], *scratch)(x)[0]

    x = data((n, 16, 32))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


@subject()
def two_outputs_by_two_warpgroups(n: int) -> Program:
    """Each warpgroup has a peer, an output and semaphores of its own."""

    def local(x):
        def body(x, a, b, sems):
            wg = lax.axis_index("wg")

            @pl.when(wg == 0)
            def _():
                plgpu.remote_ref(a, right(n))[...] = x[...] + 1
                handshake(sems.at[0], right(n))

            @pl.when(wg == 1)
            def _():
                plgpu.remote_ref(b, right(n, n - 1))[...] = x[...] - 1
                handshake(sems.at[1], right(n, n - 1))

        return kernel(body, [like((1, 128))] * 2, REGULAR((2,)), num_threads=2, thread_name="wg")(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x + 1, 1, 0), np.roll(x - 1, -1, 0)])


@subject()
def pallas_call_over_devices(n: int) -> Program:
    """`pl.pallas_call` with references to device memory."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...]
            handshake(sem, to)

        spec = pl.BlockSpec(memory_space=plgpu.GMEM)
        call = pl.pallas_call(
            body, out_shape=like((1, 128)), in_specs=[spec], out_specs=spec, scratch_shapes=[REGULAR], compiler_params=PARAMS
        )
        return call(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def batched_twice(n: int) -> Program:
    """Two vmaps, one of them over an argument only."""

    def local(x, w):
        def scaled(x, w):
            def body(x, w, o, sem):
                to = right(n)
                plgpu.remote_ref(o, to)[...] = x[...] * w[...]
                handshake(sem, to)

            return kernel(body, like(x.shape), REGULAR)(x, w)

        return jax.vmap(jax.vmap(scaled, in_axes=(0, None)))(x, w)

    x, w = data((2, 3, n, 64)), data((2, 64))
    program = over(local, line(n), (P(None, None, "x"), P()), P(None, None, "x"))
    return Program(program, [x, w], [np.roll(x * w[:, None, None], 1, 2)])


@subject()
def an_axis_of_the_grid_with_the_name_of_the_meshs(n: int) -> Program:
    """In the kernel the name is the grid's; in device ids and multicasts it is the mesh's."""

    def local(x):
        number = me()

        def body(x, o, sem):
            b = lax.axis_index("x")
            to = {"x": lax.rem(number + i32(1), i32(n))}
            plgpu.remote_ref(o, to)[0, b] = x[0, b] * 2
            pl.semaphore_signal(sem, 1, device_id=to)
            plgpu.semaphore_signal_multicast(sem, 1, collective_axes="x")
            pl.semaphore_wait(sem, n + 1)

        return kernel(body, like((1, 3, 128)), REGULAR, grid=(3,), grid_names=("x",))(x)

    x = data((n, 3, 128))
    return Program(over(local, line(n)), [x], [np.roll(x * 2, 1, 0)])
